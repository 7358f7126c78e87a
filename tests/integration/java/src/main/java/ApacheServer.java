// Runs Apache RocketMQ's name server and broker in one JVM, or a broker alone; prints "ready" when
// they serve.
//
//   ApacheServer [NAMESRV.CONF] BROKER.CONF

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

public class ApacheServer {
    public static void main(String[] args) throws Exception {
        if (args.length > 1) {
            NamesrvStartup.main0(new String[] {"-c", args[0]});
        }
        BrokerController broker =
            BrokerStartup.createBrokerController(new String[] {"-c", args[args.length - 1]});
        BrokerStartup.start(broker);
        System.out.println("ready");
        // RocketMQ 5 does not register with a name server that it has not probed yet, and tries
        // again only ten seconds later.
        for (int i = 0; i < 10; i++) {
            Thread.sleep(200);
            broker.registerBrokerAll(true, false, true);
        }
    }
}
