// Requests and replies of Apache RocketMQ's client; orders as for JavaClient.
//
//   ask      NAMESRV TOPIC GROUP COUNT    asks "question0" ..., prints the replies
//   answer   NAMESRV TOPIC GROUP COUNT    replies to that many requests, prints them
//   request  NAMESRV TOPIC GROUP COUNT    both at once

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

class Requests {
    static void run(String mode, String namesrv, String topic, String group, int count)
            throws Exception {
        if (mode.equals("ask")) {
            ask(namesrv, topic, group, count);
            return;
        }
        CountDownLatch answered = new CountDownLatch(count);
        DefaultMQProducer replies = new DefaultMQProducer(group + "-replies");
        replies.setNamesrvAddr(namesrv);
        // Clients of one process share a connection otherwise, and so an instance.
        replies.setInstanceName("replies");
        replies.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("re " + text(message)).getBytes(StandardCharsets.UTF_8);
                    replies.send(MessageUtil.createReplyMessage(message, body), 3000);
                    print("answered", text(message));
                } catch (Exception error) {
                    error.printStackTrace(System.out);
                }
                answered.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (mode.equals("request")) {
            ask(namesrv, topic, group, count);
        }
        // A first heartbeat that meets another one of the client's own is left out; the next comes 30 s later.
        if (!answered.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answered.getCount() + " requests did not come");
        }
        consumer.shutdown();
        replies.shutdown();
    }

    static void ask(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-asks");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("asks");
        producer.start();
        CountDownLatch replied = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            byte[] body = ("question" + i).getBytes(StandardCharsets.UTF_8);
            // Its blocking form returns at once in 5.3.3, with any broker. The limit is above the 30 s
            // between heartbeats: a consumer whose first one meets a lock of the client gets nothing until
            // the next, as the broker does not have its subscription.
            producer.request(new Message(topic, body), new RequestCallback() {
                public void onSuccess(Message reply) {
                    print("reply", text(reply));
                    replied.countDown();
                }

                public void onException(Throwable error) {
                    error.printStackTrace(System.out);
                }
            }, 45_000);
        }
        if (!replied.await(50, TimeUnit.SECONDS)) {
            throw new IllegalStateException(replied.getCount() + " replies did not come");
        }
        producer.shutdown();
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static synchronized void print(String kind, String body) {
        System.out.println(kind + "\t" + body);
    }
}
