// Drives ali-ons for test_ali_ons.py: one mode per call, one JSON line per result on standard output.
//
//   node ali_ons.js send    NAMESRV TOPIC GROUP  [[tag, key, body], ...]
//   node ali_ons.js consume NAMESRV TOPIC GROUP  {"tags": "A || B", "count": 3}
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const [mode, nameSrv, topic, group, input] = process.argv.slice(2);
// Only asked for a name server when none is given, but required all the same.
const httpclient = {};
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const print = value => console.log(JSON.stringify(value));

async function send() {
  const producer = new Producer({ nameSrv, httpclient, producerGroup: group, logger: silent });
  producer.on('error', fail);
  await producer.ready();
  for (const [tag, key, body] of JSON.parse(input)) {
    const message = new Message(topic, tag, body);
    message.keys = [key];
    const result = await producer.send(message);
    print({ status: result.sendStatus, msgId: result.msgId, queue: Number(result.messageQueue.queueId),
      offset: Number(result.queueOffset) });
  }
  await producer.close();
}

async function consume() {
  const { tags, count } = JSON.parse(input);
  const consumer = new Consumer({ nameSrv, httpclient, consumerGroup: group, logger: silent,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 1000 });
  consumer.on('error', fail);
  let seen = 0;
  await new Promise(resolve => {
    consumer.subscribe(topic, tags, async message => {
      print({ body: message.body.toString(), tag: message.tags, keys: message.keys,
        queue: message.queueId, offset: Number(message.queueOffset) });
      seen += 1;
      if (seen === count) resolve();
    });
  });
  // The client notes its progress only after the handler has returned.
  await new Promise(resolve => setTimeout(resolve, 200));
  await consumer.close();
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

(mode === 'send' ? send() : consume()).then(() => process.exit(0), fail);
