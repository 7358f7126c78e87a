import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class QuickStart {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("commands");
        producer.setNamesrvAddr(args[0]); // 127.0.0.1:9876
        producer.start();
        producer.send(new Message("telemetry", "dev42", "21.5".getBytes()));
        producer.shutdown();

        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("reports");
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("telemetry", "dev42");
        consumer.start();
        List<MessageExt> messages = new ArrayList<>();
        while (messages.isEmpty()) messages.addAll(consumer.poll());
        for (MessageExt one : messages) System.out.println(new String(one.getBody()));
        consumer.commitSync();
        consumer.shutdown();
    }
}
