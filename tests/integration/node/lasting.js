// ali-ons while servers are killed, for tests/fault/broker_kills.py: sends and consumes until its
// standard input ends. A line of input stops the sends; "idle" says that none is under way.
//
//   node lasting.js NAMESRV TOPIC
//
// Lines of output, separated by tabs; bodies are "TOPIC/WRITER/NUMBER":
//   tried|acknowledged  BODY
//   got  ali-ons  BODY
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const [nameSrv, topic] = process.argv.slice(2);
const WRITERS = 3, PAUSE_MS = 15;
// Only asked for a name server when none is given, but required all the same.
const httpclient = {};
const say = (...words) => console.error(new Date().toISOString(), ...words);
const logger = { debug() {}, info() {}, warn: say, error: say };
const soon = { pollNameServerInteval: 2000, heartbeatBrokerInterval: 2000, rebalanceInterval: 2000,
  persistConsumerOffsetInterval: 1000 };
const options = { nameSrv, httpclient, logger, ...soon };
const print = (...words) => process.stdout.write(words.join('\t') + '\n');
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
let sends = true;

async function send(producer, writer) {
  for (let number = 0; sends; number++) {
    const body = `${topic}/${writer}/${number}`;
    print('tried', body);
    try {
      const result = await producer.send(new Message(topic, 'tag', body));
      if (result.sendStatus === 'SEND_OK') print('acknowledged', body);
    } catch (error) {
      // A broker is away.
      await sleep(50);
    }
    await sleep(PAUSE_MS);
  }
}

async function main() {
  const producer = new Producer({ ...options, producerGroup: 'ali-ons-senders' });
  producer.on('error', say);
  await producer.ready();
  const consumer = new Consumer({ ...options, consumerGroup: 'ali-ons',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', say);
  consumer.subscribe(topic, '*', async message => print('got', 'ali-ons', message.body.toString()));
  await consumer.ready();
  const writers = Array.from({ length: WRITERS }, (_, i) => send(producer, `ali-ons${i}`));
  process.stdin.once('data', async () => {
    sends = false;
    await Promise.all(writers);
    print('idle');
  });
  process.stdin.on('end', () => process.exit(0));
}

main();
