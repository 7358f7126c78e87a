// Drives Apache RocketMQ's client. Each line of standard input is one order, its words separated by
// tabs; results are tab-separated lines on standard output, and a line "done" or "failed" ends them.
//
//   send     NAMESRV TOPIC GROUP COUNT    single, batch, asynchronous and oneway sends
//   consume  NAMESRV TOPIC GROUP COUNT TAGS
//   orderly  NAMESRV TOPIC GROUP COUNT TAGS
//   sql      NAMESRV TOPIC GROUP COUNT FILTER    as consume; "refused" if the start fails
//   assigned NAMESRV TOPIC GROUP COUNT TAGS      as consume; the broker says which queues, and how
//   later    NAMESRV TOPIC GROUP COUNT    sends with a delay level, consumes each twice
//   transact NAMESRV TOPIC GROUP COUNT    half messages of each kind (Transactions)
//   query    NAMESRV TOPIC GROUP COUNT    sends with keys, finds by key, time and both ids
//   ask, answer, request                  see Requests
//   trace, traces                         see Traces
//   lmqsend  NAMESRV TOPIC GROUP COUNT LMQ,LMQ...   sends to a topic and light queues
//   lmqpull  NAMESRV TOPIC GROUP COUNT LMQ BROKER   pulls a light queue of a topic's broker
//   mqadmin, keep, release                see Tools
//   aclsend, aclconsume, aclpull          see Acl
//   ordered, broadcast, dead, suspended   see Modes
//   lasting, sending, report, ended       see Lasting
//   join     NAMESRV TOPIC GROUP 0 RULE   becomes a member of the group, which prints what it takes;
//            RULE is hash, brief (short heartbeats) or any other word
//   joinorderly   the same, in order
//   taken    - - - 0                       prints what it has taken so far
//   leave    - - - 0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class JavaClient {
    public static void main(String[] unused) throws Exception {
        BufferedReader orders =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String outcome = "done";
            try {
                run(order.split("\t"));
            } catch (Exception error) {
                error.printStackTrace(System.out);
                outcome = "failed";
            }
            System.out.println(outcome);
        }
        System.exit(0);
    }

    static void run(String[] args) throws Exception {
        if (List.of("mqadmin", "keep", "release").contains(args[0])) {
            Tools.run(args);
            return;
        }
        if (args[0].startsWith("acl")) {
            Acl.run(args);
            return;
        }
        int count = Integer.parseInt(args[4]);
        if (args[0].equals("send")) {
            send(args[1], args[2], args[3], count);
        } else if (args[0].equals("singles")) {
            singles(args[1], args[2], args[3], count);
        } else if (args[0].equals("later")) {
            later(args[1], args[2], args[3], count);
        } else if (args[0].equals("recall")) {
            recall(args[1], args[2], args[3], count);
        } else if (args[0].equals("transact")) {
            Transactions.run(args[1], args[2], args[3], count);
        } else if (args[0].equals("query")) {
            query(args[1], args[2], args[3], count);
        } else if (List.of("ask", "answer", "request").contains(args[0])) {
            Requests.run(args[0], args[1], args[2], args[3], count);
        } else if (args[0].startsWith("lmq")) {
            LightQueues.run(args);
        } else if (List.of("ordered", "broadcast", "dead", "suspended").contains(args[0])) {
            Modes.run(args[0], args[1], args[2], args[3], count);
        } else if (args[0].startsWith("trace")) {
            Traces.run(args[0], args[1], args[2], args[3], count);
        } else if (List.of("lasting", "sending", "report", "ended").contains(args[0])) {
            Lasting.run(args);
        } else if (args[0].startsWith("join")) {
            join(args[0].equals("joinorderly"), args[1], args[2], args[3], args[5]);
        } else if (args[0].equals("taken")) {
            List.of(taken.toArray(new String[0])).forEach(System.out::println);
        } else if (args[0].equals("leave")) {
            member.shutdown();
            taken.forEach(System.out::println);
            taken.clear();
        } else {
            consume(args[0], args[1], args[2], args[3], count, args[5]);
        }
    }

    static DefaultMQPushConsumer member;
    static final List<String> taken =
        java.util.Collections.synchronizedList(new ArrayList<>());

    static void join(boolean orderly, String namesrv, String topic, String group, String rule)
            throws Exception {
        member = new DefaultMQPushConsumer(group);
        member.setNamesrvAddr(namesrv);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (rule.equals("brief")) {
            // Clients before 5.1 always say all in their heartbeats.
            member.getClass().getMethod("setUseHeartbeatV2", boolean.class).invoke(member, true);
            member.setHeartbeatBrokerInterval(500);
        }
        if (rule.equals("hash")) {
            member.setAllocateMessageQueueStrategy(new AllocateMessageQueueConsistentHash());
        }
        member.subscribe(topic, "*");
        if (orderly) {
            member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(JavaClient::note);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(JavaClient::note);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        member.start();
    }

    static void note(MessageExt message) {
        taken.add(message.getQueueId() + "\t" + message.getQueueOffset() + "\t"
            + new String(message.getBody(), StandardCharsets.UTF_8));
    }

    /** Sends one message after the other, and prints the broker that took it or the refusal. */
    static void singles(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            try {
                SendResult result = producer.send(message(topic, "single" + i));
                System.out.println("sent\t" + result.getMessageQueue().getBrokerName());
            } catch (MQBrokerException error) {
                System.out.println("refused\t" + error.getResponseCode());
            }
        }
        producer.shutdown();
    }

    static void send(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            print("single", producer.send(message(topic, "single" + i)));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            batch.add(message(topic, "batch" + i));
        }
        print("batch", producer.send(batch));
        CountDownLatch answered = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer.send(message(topic, "async" + i), new SendCallback() {
                public void onSuccess(SendResult result) {
                    print("async", result);
                    answered.countDown();
                }

                public void onException(Throwable error) {
                    error.printStackTrace(System.out);
                }
            });
        }
        if (!answered.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("an asynchronous send was not answered");
        }
        for (int i = 0; i < count; i++) {
            producer.sendOneway(message(topic, "oneway" + i));
        }
        // Over 4096 bytes the client compresses.
        char[] large = new char[50_000];
        java.util.Arrays.fill(large, 'L');
        print("large", producer.send(message(topic, new String(large))));
        producer.shutdown();
    }

    // Each message is sent with delay level 1 and refused once, so that it comes again as a retry.
    static void later(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-sender");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = message(topic, "later" + i);
            message.setDelayTimeLevel(1);
            print("sent", producer.send(message));
        }
        CountDownLatch wanted = new CountDownLatch(2 * count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean isFirst = false;
            for (MessageExt message : messages) {
                isFirst |= message.getReconsumeTimes() == 0;
                printLater(message);
                wanted.countDown();
            }
            return isFirst ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!wanted.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(wanted.getCount() + " messages did not come");
        }
        Thread.sleep(1000);
        consumer.shutdown();
        producer.shutdown();
    }

    // Clients before 5.3 have no recall, so it is called by name.
    static void recall(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        java.lang.reflect.Method recall =
            DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        for (int i = 0; i < count; i++) {
            Message message = message(topic, "recall" + i);
            message.putUserProperty("later", "yes");
            Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, 2000L);
            SendResult sent = producer.send(message);
            Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
            if (i > 0) {
                Object id = recall.invoke(producer, topic, handle);
                System.out.println("recalled\t" + sent.getMsgId().equals(id));
            }
        }
        producer.shutdown();
    }

    static synchronized void printLater(MessageExt message) {
        System.out.println("came\t" + message.getTopic() + "\t" + message.getReconsumeTimes() + "\t"
            + (message.getStoreTimestamp() - message.getBornTimestamp()) + "\t"
            + new String(message.getBody(), StandardCharsets.UTF_8));
    }

    static void query(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = message(topic, "query" + i);
            message.setKeys("every own" + i);
            SendResult result = producer.send(message);
            printFound("by-unique-id", producer.viewMessage(topic, result.getMsgId()));
            printFound("by-offset-id", producer.viewMessage(topic, result.getOffsetMsgId()));
        }
        for (String key : new String[] {"every", "own2"}) {
            for (MessageExt message
                    : producer.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
                printFound(key, message);
            }
        }
        long future = System.currentTimeMillis() + 3_600_000;
        try {
            producer.queryMessage(topic, "every", 64, future, Long.MAX_VALUE);
        } catch (MQClientException error) {
            System.out.println("future\t" + error.getResponseCode());
        }
        producer.shutdown();
    }

    static void printFound(String kind, MessageExt message) {
        System.out.println(kind + "\t" + new String(message.getBody(), StandardCharsets.UTF_8));
    }

    static Message message(String topic, String body) {
        String tag = "Tag" + (char) ('A' + Math.abs(body.hashCode()) % 3);
        return new Message(topic, tag, "key-" + body.length(), body.getBytes(StandardCharsets.UTF_8));
    }

    static synchronized void print(String kind, SendResult result) {
        System.out.println(kind + "\t" + result.getSendStatus() + "\t" + result.getOffsetMsgId()
            + "\t" + result.getMessageQueue().getQueueId() + "\t" + result.getQueueOffset());
    }

    static void consume(String mode, String namesrv, String topic, String group, int count,
            String expression) throws Exception {
        CountDownLatch wanted = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, mode.equals("sql") ? MessageSelector.bySql(expression)
            : MessageSelector.byTag(expression));
        if (mode.equals("assigned")) {
            // Clients before 5.0 always choose their queues themselves.
            consumer.getClass().getMethod("setClientRebalance", boolean.class)
                .invoke(consumer, false);
        }
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> take(message, wanted));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> take(message, wanted));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        try {
            consumer.start();
        } catch (MQClientException error) {
            System.out.println("refused\t" + error.getResponseCode() + "\t"
                + error.getErrorMessage());
            consumer.shutdown();
            return;
        }
        if (!wanted.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(wanted.getCount() + " messages did not come");
        }
        // The client notes its progress only after the listener has returned; shutdown commits it.
        Thread.sleep(1000);
        consumer.shutdown();
    }

    static synchronized void take(MessageExt message, CountDownLatch wanted) {
        System.out.println(message.getQueueId() + "\t" + message.getQueueOffset() + "\t"
            + message.getTags() + "\t" + message.getKeys() + "\t"
            + new String(message.getBody(), StandardCharsets.UTF_8));
        wanted.countDown();
    }
}
