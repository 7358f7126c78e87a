// Ways to send and to consume that are not the usual ones, for the driver JavaClient.
//
//   ordered    NAMESRV TOPIC GROUP COUNT    sends so many for each of two keys, which choose the queue
//   broadcast  NAMESRV TOPIC GROUP COUNT    two members, each of which gets all that is sent then
//   dead       NAMESRV TOPIC GROUP COUNT    refuses each message twice, which is once too often
//   suspended  NAMESRV TOPIC GROUP COUNT    the same in order

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

class Modes {
    static void run(String mode, String namesrv, String topic, String group, int count)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-sender");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        if (mode.equals("ordered")) {
            ordered(producer, topic, count);
        } else if (mode.equals("broadcast")) {
            broadcast(producer, namesrv, topic, group, count);
        } else if (mode.equals("suspended")) {
            suspended(producer, namesrv, topic, group, count);
        } else {
            dead(producer, namesrv, topic, group, count);
        }
        producer.shutdown();
    }

    static void ordered(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int i = 0; i < 2 * count; i++) {
            Message message = new Message(topic, bytes("ordered" + i));
            SendResult sent = producer.send(message,
                (queues, one, key) -> queues.get((Integer) key % queues.size()), i % 2);
            System.out.println("sent\t" + sent.getSendStatus() + "\t"
                + sent.getMessageQueue().getQueueId() + "\t" + sent.getQueueOffset());
        }
    }

    static void broadcast(DefaultMQProducer producer, String namesrv, String topic, String group,
            int count) throws Exception {
        CountDownLatch wanted = new CountDownLatch(2 * count);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            String member = "member" + i;
            DefaultMQPushConsumer consumer = consumer(namesrv, topic, group);
            setBroadcasting(consumer);
            // Its offsets are in a file of this name.
            consumer.setInstanceName(member + "-" + System.nanoTime());
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> print(member, message));
                messages.forEach(message -> wanted.countDown());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            members.add(consumer);
        }
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, bytes("broadcast" + i)));
        }
        await(wanted);
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    // The kind of model is in another package since 5.0.
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class model = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
            }
        }
    }

    static void dead(DefaultMQProducer producer, String namesrv, String topic, String group,
            int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, bytes("dead" + i)));
        }
        CountDownLatch wanted = new CountDownLatch(2 * count);
        DefaultMQPushConsumer consumer = consumer(namesrv, topic, group);
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> print("refused", message));
            messages.forEach(message -> wanted.countDown());
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        await(wanted);
        Thread.sleep(1000);
        consumer.shutdown();
    }

    static void suspended(DefaultMQProducer producer, String namesrv, String topic, String group,
            int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, bytes("suspended" + i)));
        }
        CountDownLatch wanted = new CountDownLatch(2 * count);
        DefaultMQPushConsumer consumer = consumer(namesrv, topic, group);
        consumer.setMaxReconsumeTimes(1);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            context.setSuspendCurrentQueueTimeMillis(10);
            messages.forEach(message -> print("refused", message));
            messages.forEach(message -> wanted.countDown());
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        consumer.start();
        await(wanted);
        // What is not a dead letter by then comes again, after a delay of 1 s.
        Thread.sleep(3000);
        consumer.shutdown();
    }

    static DefaultMQPushConsumer consumer(String namesrv, String topic, String group)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    static void await(CountDownLatch wanted) throws Exception {
        if (!wanted.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(wanted.getCount() + " messages did not come");
        }
    }

    static byte[] bytes(String body) {
        return body.getBytes(StandardCharsets.UTF_8);
    }

    static synchronized void print(String kind, MessageExt message) {
        System.out.println(kind + "\t" + message.getReconsumeTimes() + "\t"
            + new String(message.getBody(), StandardCharsets.UTF_8));
    }
}
