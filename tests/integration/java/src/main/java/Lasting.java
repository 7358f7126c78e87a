// Clients that go on while servers are killed, for the driver JavaClient. Bodies are
// "TOPIC/WRITER/NUMBER".
//
//   lasting NAMESRV - - 0     starts producers and consumers
//   sending - - - 0|1         whether the producers send; once they do not, nothing is under way
//   report  - - - 0           what has happened since the last report
//   ended   - - - 0           ends all of them
//
// A report has the lines
//   tried|acknowledged|rolled  BODY
//   got  CONSUMER  BODY

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

class Lasting implements TransactionListener {
    static final int PAUSE_MS = 10;
    static Lasting running;

    private final List<String> lines = Collections.synchronizedList(new ArrayList<>());
    private final List<Thread> threads = new ArrayList<>();
    private final List<DefaultMQPushConsumer> pushing = new ArrayList<>();
    private final AtomicInteger active = new AtomicInteger();
    private DefaultMQProducer producer;
    private TransactionMQProducer bound;
    private DefaultLitePullConsumer pull;
    private volatile boolean sends = true;
    private volatile boolean ends;

    interface Step {
        void take(String writer, int number) throws Exception;
    }

    static void run(String[] args) throws Exception {
        if (args[0].equals("lasting")) {
            running = new Lasting();
            running.start(args[1]);
        } else if (args[0].equals("sending")) {
            running.sends = args[4].equals("1");
            while (!running.sends && running.active.get() > 0) {
                Thread.sleep(10);
            }
        } else if (args[0].equals("report")) {
            running.report();
        } else {
            running.end();
        }
    }

    void report() {
        synchronized (lines) {
            lines.forEach(System.out::println);
            lines.clear();
        }
    }

    void start(String namesrv) throws Exception {
        producer = new DefaultMQProducer("java-senders");
        soon(producer, namesrv);
        producer.start();
        bound = new TransactionMQProducer("java-bound");
        soon(bound, namesrv);
        bound.setTransactionListener(this);
        bound.start();
        sendFrom("plain", "java-sync", this::sendOne);
        sendFrom("plain", "java-batch", this::sendBatch);
        sendFrom("plain", "java-async", this::sendLater);
        sendFrom("bound", "java", this::sendBound);
        push(namesrv, "java-push", false, "plain", "bound");
        push(namesrv, "java-orderly", true, "ordered");
        try {
            DefaultMQPushConsumer pop = consumer(namesrv, "java-pop", false, "plain", "bound");
            // Clients before 5.0 have no POP.
            pop.getClass().getMethod("setClientRebalance", boolean.class).invoke(pop, false);
            pop.start();
        } catch (NoSuchMethodException error) {
            pushing.remove(pushing.size() - 1);
        }
        pull(namesrv, "java-pull", "plain");
    }

    // They look for brokers every two seconds instead of thirty.
    static void soon(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setPollNameServerInterval(2000);
        client.setHeartbeatBrokerInterval(2000);
    }

    void push(String namesrv, String group, boolean orderly, String... topics) throws Exception {
        consumer(namesrv, group, orderly, topics).start();
    }

    DefaultMQPushConsumer consumer(String namesrv, String group, boolean orderly, String... topics)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        soon(consumer, namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        for (String topic : topics) {
            consumer.subscribe(topic, "*");
        }
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> got(group, message));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> got(group, message));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        pushing.add(consumer);
        return consumer;
    }

    void pull(String namesrv, String group, String topic) throws Exception {
        pull = new DefaultLitePullConsumer(group);
        soon(pull, namesrv);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, "*");
        pull.start();
        Thread thread = new Thread(() -> {
            while (!ends) {
                pull.poll(200).forEach(message -> got(group, message));
            }
        });
        thread.start();
        threads.add(thread);
    }

    void got(String group, MessageExt message) {
        lines.add("got\t" + group + "\t" + text(message));
    }

    void sendFrom(String topic, String writer, Step step) {
        Thread thread = new Thread(() -> {
            for (int number = 0; !ends;) {
                active.incrementAndGet();
                try {
                    if (sends) {
                        number++;
                        step.take(topic + "/" + writer, number);
                    }
                } catch (Exception notAcknowledged) {
                    // The message may be stored or not.
                } finally {
                    active.decrementAndGet();
                }
                try {
                    Thread.sleep(PAUSE_MS);
                } catch (InterruptedException end) {
                    return;
                }
            }
        });
        thread.start();
        threads.add(thread);
    }

    Message message(String writer, int number) {
        String body = writer + "/" + number;
        lines.add("tried\t" + body);
        String topic = writer.substring(0, writer.indexOf('/'));
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    void acknowledged(SendResult sent, String body) {
        if (sent.getSendStatus() == SendStatus.SEND_OK) {
            lines.add("acknowledged\t" + body);
        }
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    void sendOne(String writer, int number) throws Exception {
        Message message = message(writer, number);
        acknowledged(producer.send(message), text(message));
    }

    void sendBatch(String writer, int number) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            batch.add(message(writer, 4 * number + i));
        }
        SendResult sent = producer.send(batch);
        batch.forEach(message -> acknowledged(sent, text(message)));
    }

    void sendLater(String writer, int number) throws Exception {
        CountDownLatch answered = new CountDownLatch(4);
        for (int i = 0; i < 4; i++) {
            Message message = message(writer, 4 * number + i);
            producer.send(message, new SendCallback() {
                public void onSuccess(SendResult sent) {
                    acknowledged(sent, text(message));
                    answered.countDown();
                }

                public void onException(Throwable error) {
                    answered.countDown();
                }
            });
        }
        answered.await(20, TimeUnit.SECONDS);
    }

    // Half of them are committed, and of all some are left to the broker's question.
    void sendBound(String writer, int number) throws Exception {
        Message message = message(writer, number);
        SendResult sent = bound.sendMessageInTransaction(message, null);
        if (state(text(message)) == LocalTransactionState.COMMIT_MESSAGE) {
            acknowledged(sent, text(message));
        }
    }

    static LocalTransactionState state(String body) {
        int number = Integer.parseInt(body.substring(body.lastIndexOf('/') + 1));
        return number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE
            : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String body = text(message);
        if (state(body) == LocalTransactionState.ROLLBACK_MESSAGE) {
            lines.add("rolled\t" + body);
        }
        return body.endsWith("4") || body.endsWith("5") ? LocalTransactionState.UNKNOW
            : state(body);
    }

    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return state(text(message));
    }

    void end() throws Exception {
        ends = true;
        for (Thread thread : threads) {
            thread.join(10_000);
        }
        pushing.forEach(DefaultMQPushConsumer::shutdown);
        pull.shutdown();
        producer.shutdown();
        bound.shutdown();
        running = null;
    }
}
