// Loads a broker as a Java service does, and says what it got.
//
//   Bench NAMESRV TOPIC sync|async|batch|drain THREADS BYTES WARM_S SECONDS
//
// Prints "begin" when it is warm, then "end COUNT P50_US P99_US". Asynchronous sends are 512 at
// once, batches have 32 messages; a drain reads what is there, with a push consumer.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

public class Bench {
    private static final int IN_FLIGHT = 512;
    private static final int BATCH = 32;
    private static final int SAMPLES = 1 << 21;

    private static final LongAdder COUNT = new LongAdder();
    private static final LongAdder FAILED = new LongAdder();
    private static final int[] TOOK_US = new int[SAMPLES];
    private static final AtomicInteger TAKEN = new AtomicInteger();
    private static volatile boolean isCounting;
    private static volatile boolean isOver;

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        byte[] body = new byte[Integer.parseInt(args[4])];
        new Random(1).nextBytes(body);
        if (args[2].equals("drain")) {
            drain(args[0], topic);
        } else {
            send(args[0], topic, args[2], Integer.parseInt(args[3]), body);
        }
        Thread.sleep((long) (Double.parseDouble(args[5]) * 1000));
        isCounting = true;
        say("begin");
        Thread.sleep((long) (Double.parseDouble(args[6]) * 1000));
        isCounting = false;
        int taken = Math.min(TAKEN.get(), SAMPLES);
        int[] sorted = Arrays.copyOf(TOOK_US, taken);
        Arrays.sort(sorted);
        int half = taken == 0 ? 0 : sorted[taken / 2];
        int high = taken == 0 ? 0 : sorted[(int) (taken * 0.99)];
        say("end " + COUNT.sum() + " " + half + " " + high + " " + FAILED.sum());
        isOver = true;
        Runtime.getRuntime().halt(0);
    }

    private static void send(String namesrv, String topic, String how, int threads, byte[] body)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        Semaphore room = new Semaphore(IN_FLIGHT);
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                while (!isOver) {
                    try {
                        if (how.equals("async")) {
                            sendAsync(producer, new Message(topic, body), room);
                        } else if (how.equals("batch")) {
                            List<Message> batch = new ArrayList<>(BATCH);
                            for (int j = 0; j < BATCH; j++) {
                                batch.add(new Message(topic, body));
                            }
                            long begin = System.nanoTime();
                            note(producer.send(batch), begin, BATCH);
                        } else {
                            long begin = System.nanoTime();
                            note(producer.send(new Message(topic, body)), begin, 1);
                        }
                    } catch (Exception e) {
                        FAILED.increment();
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }

    private static void sendAsync(DefaultMQProducer producer, Message message, Semaphore room)
        throws Exception {
        room.acquire();
        long begin = System.nanoTime();
        producer.send(message, new SendCallback() {
            public void onSuccess(SendResult result) {
                room.release();
                note(result, begin, 1);
            }

            public void onException(Throwable e) {
                room.release();
                FAILED.increment();
            }
        });
    }

    private static void note(SendResult result, long begin, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            FAILED.increment();
        } else if (isCounting) {
            COUNT.add(count);
            int at = TAKEN.getAndIncrement();
            if (at >= 0 && at < SAMPLES) {
                TOOK_US[at] = (int) ((System.nanoTime() - begin) / 1000);
            }
        }
    }

    private static void drain(String namesrv, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-drain");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (isCounting) {
                COUNT.add(messages.size());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
