// RocketMQ's command line tools, many commands in one process; orders as for JavaClient.
//
//   mqadmin  NAMESRV COMMAND ARGUMENT...    what it prints is the result
//   keep     NAMESRV TOPIC GROUP COUNT      starts a consumer, which stays until "release"
//   release  NAMESRV

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.tools.command.MQAdminStartup;

class Tools {
    static DefaultMQPushConsumer kept;

    static void run(String[] args) throws Exception {
        if (args[0].equals("keep")) {
            keep(args[1], args[2], args[3], Integer.parseInt(args[4]));
        } else if (args[0].equals("release")) {
            kept.shutdown();
        } else {
            if (System.getProperty("rocketmq.home.dir") == null) {
                // The tools of 4.9 fail without a configuration of their log.
                Path home = Files.createTempDirectory("mqadmin");
                Files.createDirectory(home.resolve("conf"));
                byte[] none = "<configuration/>".getBytes(StandardCharsets.UTF_8);
                Files.write(home.resolve("conf").resolve("logback_tools.xml"), none);
                System.setProperty("rocketmq.home.dir", home.toString());
            }
            List<String> words = new ArrayList<>(Arrays.asList(args[2], "-n", args[1]));
            words.addAll(Arrays.asList(args).subList(3, args.length));
            // An error is printed to where a shell would see it; here it belongs to the result.
            java.io.PrintStream errors = System.err;
            System.setErr(System.out);
            try {
                MQAdminStartup.main0(words.toArray(new String[0]), null);
            } finally {
                System.setErr(errors);
                // Some commands do not end their last line.
                System.out.println();
            }
        }
    }

    static void keep(String namesrv, String topic, String group, int count) throws Exception {
        CountDownLatch wanted = new CountDownLatch(count);
        kept = new DefaultMQPushConsumer(group);
        kept.setNamesrvAddr(namesrv);
        kept.setInstanceName("kept");
        kept.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        kept.subscribe(topic, "*");
        kept.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> wanted.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        kept.start();
        if (!wanted.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(wanted.getCount() + " messages did not come");
        }
        // A message counts as consumed only behind the listener's return.
        OffsetStore offsets = kept.getDefaultMQPushConsumerImpl().getOffsetStore();
        while (offsets.cloneOffsetTable(topic).values().stream().mapToLong(Long::longValue).sum()
                < count) {
            Thread.sleep(10);
        }
        // Tools show what is committed.
        kept.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        System.out.println("client\t" + kept.buildMQClientId());
    }
}
