// Clients that trace what they do, and what RocketMQ's own decoder makes of traces; orders as for
// JavaClient.
//
//   trace    NAMESRV TOPIC GROUP COUNT    sends and consumes; both are traced
//   traces   NAMESRV TOPIC GROUP COUNT    consumes the traces in TOPIC, COUNT records

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

class Traces {
    static void run(String mode, String namesrv, String topic, String group, int count)
            throws Exception {
        boolean traced = mode.equals("trace");
        DefaultMQProducer producer = new DefaultMQProducer(group + "-sender", true, null);
        if (traced) {
            producer.setNamesrvAddr(namesrv);
            producer.start();
            for (int i = 0; i < count; i++) {
                Message message = new Message(topic, "Tag", "key" + i, new byte[] {'x'});
                System.out.println("sent\t" + producer.send(message).getMsgId());
            }
        }
        CountDownLatch wanted = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, traced, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (traced) {
                    wanted.countDown();
                } else {
                    decode(new String(message.getBody(), StandardCharsets.UTF_8), wanted);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!wanted.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(wanted.getCount() + " did not come");
        }
        Thread.sleep(1000);
        consumer.shutdown();
        if (traced) {
            producer.shutdown();
        }
    }

    static synchronized void decode(String body, CountDownLatch wanted) {
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(body)) {
            TraceBean bean = context.getTraceBeans().get(0);
            System.out.println(String.join("\t", "record", context.getTraceType().name(),
                context.getGroupName(), bean.getMsgId(), bean.getTopic(), bean.getTags(),
                bean.getKeys(), "" + bean.getMsgType(), "" + context.isSuccess(),
                bean.getOffsetMsgId(), "" + bean.getTransactionState(),
                "" + bean.isFromTransactionCheck(), "" + bean.getRetryTimes(),
                "" + context.getContextCode()));
            wanted.countDown();
        }
    }
}
