// Drives npm's rocketmq-client-nodejs; prints JSON lines: what was sent, and who got what.
//   client.js ENDPOINTS: topics "js-normal" and "js-bound", groups "js-simple", "js-bound" and "js-push"
const {
  ConsumeResult, Producer, PushConsumer, SimpleConsumer, TransactionResolution,
} = require('rocketmq-client-nodejs');

const TOPIC = 'js-normal';
const BOUND = 'js-bound';
const COUNT = 6;
const DEADLINE_MS = 40_000;
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const options = { endpoints: process.argv[2], namespace: '', logger: quiet };

function show(fields) {
  console.log(JSON.stringify(fields));
}

// Sends half messages and ends them; reads what is committed.
async function bound() {
  const producer = new Producer({
    ...options, topics: [BOUND], checker: { async check() { return TransactionResolution.ROLLBACK; } },
  });
  await producer.startup();
  for (const body of ['rollback', 'commit']) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic: BOUND, body: Buffer.from(body) }, transaction);
    await transaction[body]();
  }
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: 'js-bound', subscriptions: new Map([[BOUND, '*']]), awaitDuration: 5000,
  });
  await consumer.startup();
  const end = Date.now() + DEADLINE_MS;
  for (let left = 1; left > 0 && Date.now() < end;) {
    for (const message of await consumer.receive(16, 30_000)) {
      show({ got: message.body.toString(), by: 'bound', attempt: message.deliveryAttempt });
      await consumer.ack(message);
      left--;
    }
  }
  await consumer.shutdown();
  await producer.shutdown();
}

async function main() {
  await bound();
  const producer = new Producer(options);
  await producer.startup();
  for (let i = 0; i < COUNT; i++) {
    const receipt = await producer.send({ topic: TOPIC, tag: 'a', keys: [`k${i}`], body: Buffer.from(`n${i}`) });
    show({ sent: `n${i}`, id: receipt.messageId });
  }
  const simple = new SimpleConsumer({
    ...options, consumerGroup: 'js-simple', subscriptions: new Map([[TOPIC, 'a']]), awaitDuration: 5000,
  });
  await simple.startup();
  const end = Date.now() + DEADLINE_MS;
  for (let left = COUNT; left > 0 && Date.now() < end;) {
    for (const message of await simple.receive(16, 30_000)) {
      show({ got: message.body.toString(), by: 'simple', attempt: message.deliveryAttempt });
      await simple.ack(message);
      left--;
    }
  }
  let left = COUNT;
  const push = new PushConsumer({
    ...options, consumerGroup: 'js-push', subscriptions: new Map([[TOPIC, 'a']]),
    messageListener: {
      async consume(message) {
        show({ got: message.body.toString(), by: 'push', attempt: message.deliveryAttempt });
        left--;
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await push.startup();
  while (left > 0 && Date.now() < end) await new Promise(resolve => setTimeout(resolve, 50));
  // The last acknowledgements are on their way.
  await new Promise(resolve => setTimeout(resolve, 500));
  await push.shutdown();
  await simple.shutdown();
  await producer.shutdown();
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
