// Messages that are in light queues besides their own topic; orders as for JavaClient.

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

@SuppressWarnings("deprecation")
class LightQueues {
    static void run(String[] args) throws Exception {
        int count = Integer.parseInt(args[4]);
        if (args[0].equals("lmqsend")) {
            send(args[1], args[2], args[3], count, args[5]);
        } else {
            pull(args[1], args[2], args[3], count, new MessageQueue(args[5], args[6], 0));
        }
    }

    static void send(String namesrv, String topic, String group, int count, String names)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "Tag" + i % 2, ("light" + i).getBytes());
            message.putUserProperty("INNER_MULTI_DISPATCH", names);
            System.out.println("sent\t" + producer.send(message).getSendStatus());
        }
        producer.shutdown();
    }

    static void pull(String namesrv, String topic, String group, int count, MessageQueue queue)
            throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        // A light queue has no route: its broker is found by the topic's.
        consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .updateTopicRouteInfoFromNameServer(topic);
        long offset = consumer.minOffset(queue);
        System.out.println("ends\t" + offset + "\t" + consumer.maxOffset(queue));
        long end = System.currentTimeMillis() + 30_000;
        for (int got = 0; got < count && System.currentTimeMillis() < end; ) {
            PullResult result = consumer.pullBlockIfNotFound(queue, "*", offset, 3);
            if (result.getMsgFoundList() != null) {
                for (MessageExt message : result.getMsgFoundList()) {
                    System.out.println("pulled\t" + offset++ + "\t" + message.getTopic() + "\t"
                        + message.getTags() + "\t"
                        + message.getProperty("INNER_MULTI_QUEUE_OFFSET") + "\t"
                        + new String(message.getBody(), StandardCharsets.UTF_8));
                    got++;
                }
            }
            offset = result.getNextBeginOffset();
        }
        // A pull consumer saves only the queues of topics that it is told to rebalance.
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
            .updateConsumeOffsetToBroker(queue, offset, false);
        System.out.println("next\t" + offset);
        consumer.shutdown();
    }
}
