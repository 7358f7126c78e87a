import com.google.gson.Gson;
import com.hivemq.client.mqtt.MqttClientBuilder;
import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.lifecycle.Mqtt3ClientConnectedContext;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.lifecycle.Mqtt5ClientConnectedContext;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.TrustManagerFactory;

/**
 * HiveMQ's client, as its users get it: reads orders and prints events, JSON line by JSON line
 * (tests/support/mqtt_programs.py). Its argument is the version of MQTT, 4 or 5.
 */
public final class HiveMq {
    private static final Gson GSON = new Gson();

    /** One line of standard input, or a will in it; which fields count depends on what to do. */
    static final class Order {
        String client, id, filter, topic, payload;
        /** File of the authority that is trusted: then by TLS. Path of a WebSocket: then by that. */
        String ca, websocket;
        // "do" is no name in Java.
        @com.google.gson.annotations.SerializedName("do") String what;
        int port, qos;
        boolean keep, retain;
        Order will;

        MqttQos level() {
            return MqttQos.fromCode(qos);
        }

        byte[] bytes() {
            return payload.getBytes();
        }
    }

    private interface Client {
        CompletableFuture<?> connect();

        CompletableFuture<?> subscribe(Order order);

        CompletableFuture<?> publish(Order order);

        CompletableFuture<?> disconnect();
    }

    private static synchronized void say(String client, String event, Object... fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("client", client);
        line.put("event", event);
        for (int at = 0; at < fields.length; at += 2) {
            line.put((String) fields[at], fields[at + 1]);
        }
        System.out.println(GSON.toJson(line));
    }

    private static void message(Order order, Object topic, byte[] payload, MqttQos qos, boolean retain) {
        say(order.client, "message", "topic", topic.toString(), "payload", new String(payload),
            "qos", qos.getCode(), "retain", retain);
    }

    private static MqttClientBuilder builder(Order order) {
        MqttClientBuilder builder = MqttClient.builder();
        builder = builder.identifier(order.id).serverHost("127.0.0.1").serverPort(order.port);
        if (order.ca != null) {
            builder = builder.sslConfig().trustManagerFactory(trusting(order.ca)).applySslConfig();
        }
        if (order.websocket != null) {
            builder = builder.webSocketConfig().serverPath(order.websocket).applyWebSocketConfig();
        }
        // Who wants to keep a session wants to come back to it; left to itself it does not.
        return order.keep ? builder.automaticReconnectWithDefaultConfig() : builder;
    }

    private static TrustManagerFactory trusting(String authority) {
        try (InputStream file = new FileInputStream(authority)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null);
            store.setCertificateEntry("authority",
                CertificateFactory.getInstance("X.509").generateCertificate(file));
            TrustManagerFactory factory =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            factory.init(store);
            return factory;
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalArgumentException(authority, e);
        }
    }

    private static final class Client3 implements Client {
        private final Order order;
        private final Mqtt3AsyncClient mqtt;

        Client3(Order order) {
            this.order = order;
            mqtt = builder(order).useMqttVersion3().addConnectedListener(context ->
                say(order.client, "connected", "present",
                    ((Mqtt3ClientConnectedContext) context).getConnAck().isSessionPresent())).buildAsync();
            mqtt.publishes(MqttGlobalPublishFilter.ALL, it ->
                message(order, it.getTopic(), it.getPayloadAsBytes(), it.getQos(), it.isRetain()));
        }

        @Override public CompletableFuture<?> connect() {
            var connect = mqtt.connectWith().cleanSession(!order.keep);
            return (order.will == null ? connect : connect.willPublish(publishOf(order.will))).send();
        }

        @Override public CompletableFuture<?> subscribe(Order it) {
            return mqtt.subscribeWith().topicFilter(it.filter).qos(it.level()).send();
        }

        @Override public CompletableFuture<?> publish(Order it) {
            return mqtt.publish(publishOf(it));
        }

        @Override public CompletableFuture<?> disconnect() {
            return mqtt.disconnect();
        }

        private static Mqtt3Publish publishOf(Order it) {
            return Mqtt3Publish.builder().topic(it.topic).payload(it.bytes()).qos(it.level())
                .retain(it.retain).build();
        }
    }

    private static final class Client5 implements Client {
        private final Order order;
        private final Mqtt5AsyncClient mqtt;

        Client5(Order order) {
            this.order = order;
            mqtt = builder(order).useMqttVersion5().addConnectedListener(context ->
                say(order.client, "connected", "present",
                    ((Mqtt5ClientConnectedContext) context).getConnAck().isSessionPresent())).buildAsync();
            mqtt.publishes(MqttGlobalPublishFilter.ALL, it ->
                message(order, it.getTopic(), it.getPayloadAsBytes(), it.getQos(), it.isRetain()));
        }

        @Override public CompletableFuture<?> connect() {
            var connect = mqtt.connectWith().cleanStart(!order.keep);
            if (order.keep) {
                connect = connect.sessionExpiryInterval(600);
            }
            return (order.will == null ? connect : connect.willPublish(publishOf(order.will))).send();
        }

        @Override public CompletableFuture<?> subscribe(Order it) {
            return mqtt.subscribeWith().topicFilter(it.filter).qos(it.level()).send();
        }

        @Override public CompletableFuture<?> publish(Order it) {
            return mqtt.publish(publishOf(it));
        }

        @Override public CompletableFuture<?> disconnect() {
            return mqtt.disconnect();
        }

        private static Mqtt5Publish publishOf(Order it) {
            return Mqtt5Publish.builder().topic(it.topic).payload(it.bytes()).qos(it.level())
                .retain(it.retain).build();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Client> clients = new HashMap<>();
        Map<String, List<CompletableFuture<?>>> sending = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            Order order = GSON.fromJson(line, Order.class);
            Client client = clients.get(order.client);
            switch (order.what) {
                case "connect":
                    client = arguments[0].equals("5") ? new Client5(order) : new Client3(order);
                    clients.put(order.client, client);
                    sending.put(order.client, new ArrayList<>());
                    client.connect().get();
                    break;
                case "subscribe":
                    client.subscribe(order).get();
                    say(order.client, "subscribed");
                    break;
                case "publish":
                    sending.get(order.client).add(client.publish(order));
                    break;
                case "drain":
                    for (CompletableFuture<?> it : sending.get(order.client)) {
                        it.get();
                    }
                    say(order.client, "drained");
                    break;
                case "disconnect":
                    client.disconnect().get();
                    say(order.client, "disconnected");
                    break;
                default:
                    throw new IllegalArgumentException(order.what);
            }
        }
        System.exit(0);
    }
}
