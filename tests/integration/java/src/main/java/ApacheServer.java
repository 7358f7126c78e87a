// Runs Apache RocketMQ's name server and broker in one JVM, or one of them; prints "ready" when they
// serve.
//
//   ApacheServer [namesrv.conf] [broker.conf]

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

public class ApacheServer {
    public static void main(String[] args) throws Exception {
        BrokerController broker = null;
        for (String file : args) {
            String[] options = {"-c", file};
            if (file.endsWith("namesrv.conf")) {
                NamesrvStartup.main0(options);
            } else {
                broker = BrokerStartup.createBrokerController(options);
                BrokerStartup.start(broker);
            }
        }
        System.out.println("ready");
        // RocketMQ 5 does not register with a name server that it has not probed yet, and tries
        // again only ten seconds later.
        for (int i = 0; i < 10 && broker != null; i++) {
            Thread.sleep(200);
            broker.registerBrokerAll(true, false, true);
        }
    }
}
