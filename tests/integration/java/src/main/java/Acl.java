// Clients with an AclClientRPCHook; orders as for JavaClient.
//
//   aclsend     NAMESRV TOPIC GROUP COUNT KEY SECRET   sends, finds each message by its unique id
//   aclconsume  NAMESRV TOPIC GROUP COUNT KEY SECRET   a push consumer takes COUNT messages
//   aclpull     NAMESRV TOPIC GROUP COUNT KEY SECRET   pulls from the first queue
//
// "-" as KEY is a client without hook. A refusal prints "refused", its code and its text.

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

class Acl {
    static void run(String[] args) throws Exception {
        // A retry topic is found at the next turn of this; the clients of this process read it once.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        RPCHook hook = args[5].equals("-")
            ? null : new AclClientRPCHook(new SessionCredentials(args[5], args[6]));
        int count = Integer.parseInt(args[4]);
        try {
            if (args[0].equals("aclsend")) {
                send(hook, args[1], args[2], args[3], count);
            } else if (args[0].equals("aclconsume")) {
                consume(hook, args[1], args[2], args[3], count);
            } else {
                pull(hook, args[1], args[2], args[3]);
            }
        } catch (MQBrokerException error) {
            refused(error);
        } catch (MQClientException error) {
            if (error.getCause() instanceof MQBrokerException) {
                refused((MQBrokerException) error.getCause());
            } else {
                System.out.println("refused\t" + error.getResponseCode() + "\tno route");
            }
        }
    }

    static void refused(MQBrokerException error) {
        System.out.println("refused\t" + error.getResponseCode() + "\t" + error.getErrorMessage());
    }

    static void send(RPCHook hook, String namesrv, String topic, String group, int count)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("aclsend" + System.nanoTime());
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            for (int i = 0; i < count; i++) {
                byte[] body = ("Grüße " + i).getBytes(StandardCharsets.UTF_8);
                SendResult sent = producer.send(new Message(topic, "A", "key" + i, body));
                MessageExt found = producer.viewMessage(topic, sent.getMsgId());
                System.out.println(
                    "sent\t" + sent.getSendStatus() + "\t"
                        + new String(found.getBody(), StandardCharsets.UTF_8));
            }
        } finally {
            producer.shutdown();
        }
    }

    static void consume(RPCHook hook, String namesrv, String topic, String group, int count)
            throws Exception {
        CountDownLatch wanted = new CountDownLatch(count);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("aclconsume" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "A");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                // One comes again, by the group's retry topic.
                if (one.getKeys().equals("key0") && one.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                System.out.println("took\t" + new String(one.getBody(), StandardCharsets.UTF_8));
                wanted.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean isDone = wanted.await(40, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!isDone) {
            throw new IllegalStateException(wanted.getCount() + " messages did not come");
        }
    }

    @SuppressWarnings("deprecation")
    static void pull(RPCHook hook, String namesrv, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("aclpull" + System.nanoTime());
        consumer.start();
        try {
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            PullResult found = consumer.pull(queue, "*", 0, 32);
            System.out.println("pulled\t" + found.getPullStatus());
        } finally {
            consumer.shutdown();
        }
    }
}
