// Sends half messages and ends each as its body says, some only when the broker asks:
// "commit0", "rollback0", "asked-commit0", "asked-rollback0", ...

import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Transactions implements TransactionListener {
    static final String[] KINDS = {"commit", "rollback", "asked-commit", "asked-rollback"};

    private final Set<String> asked = ConcurrentHashMap.newKeySet();
    private final CountDownLatch wanted;

    Transactions(int count) {
        wanted = new CountDownLatch(2 * count);
    }

    static void run(String namesrv, String topic, String group, int count) throws Exception {
        Transactions listener = new Transactions(count);
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setTransactionListener(listener);
        producer.start();
        for (int i = 0; i < count; i++) {
            for (String kind : KINDS) {
                byte[] body = (kind + i).getBytes(StandardCharsets.UTF_8);
                Message message = new Message(topic, "Tag", "key" + i, body);
                TransactionSendResult sent = producer.sendMessageInTransaction(message, null);
                System.out.println(
                    "sent\t" + sent.getSendStatus() + "\t" + sent.getLocalTransactionState()
                    + "\t" + sent.getTransactionId().equals(sent.getMsgId()) + "\t" + kind + i);
            }
        }
        if (!listener.wanted.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the broker has not asked about " + count);
        }
        // The last answer is a one-way request.
        Thread.sleep(1000);
        producer.shutdown();
    }

    static LocalTransactionState state(String body) {
        return body.contains("commit") ? LocalTransactionState.COMMIT_MESSAGE
            : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        return body.startsWith("asked") ? LocalTransactionState.UNKNOW : state(body);
    }

    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        System.out.println(
            "asked\t" + message.getTopic() + "\t" + message.getTags() + "\t"
            + message.getTransactionId().equals(message.getProperty("UNIQ_KEY")) + "\t" + body);
        if (asked.add(body)) {
            wanted.countDown();
        }
        return state(body);
    }
}
