// A client of one version of MQTT, included for each: their types have the same names.

struct Driven(AsyncClient);

impl Client for Driven {
    fn subscribe(&self, filter: String, level: u8) -> Wait {
        let client = self.0.clone();
        Box::pin(async move { client.subscribe(filter, level_of(level)).await.unwrap() })
    }

    fn publish(&self, topic: String, payload: String, level: u8, retain: bool) -> Wait {
        let client = self.0.clone();
        Box::pin(async move {
            let sent = client.publish(topic, level_of(level), retain, payload);
            sent.await.unwrap()
        })
    }

    fn disconnect(&self) -> Wait {
        let client = self.0.clone();
        Box::pin(async move { client.disconnect().await.unwrap() })
    }
}

pub fn connect(order: &Value, done: watch::Sender<Done>) -> Rc<dyn Client> {
    let port = order["port"].as_u64().unwrap() as u16;
    let mut options = MqttOptions::new(text(order, "id"), "127.0.0.1", port);
    if order["keep"] == true {
        keep(&mut options);
    }
    if order["will"].is_object() {
        options.set_last_will(will(&order["will"]));
    }
    let (client, mut events) = AsyncClient::new(options, 10);
    let name = text(order, "client");
    spawn_local(async move {
        while !done.borrow().disconnected {
            match events.poll().await {
                Ok(Event::Incoming(packet)) => incoming(&name, packet, &done),
                Ok(Event::Outgoing(Outgoing::Publish(0))) => done.send_modify(|it| it.published += 1),
                Ok(Event::Outgoing(Outgoing::Disconnect)) => done.send_modify(|it| it.disconnected = true),
                Ok(_) => {}
                // The next poll connects again.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Rc::new(Driven(client))
}

fn incoming(name: &str, packet: Packet, done: &watch::Sender<Done>) {
    match packet {
        Packet::ConnAck(connack) => {
            say(name, "connected", json!({"present": connack.session_present}));
            done.send_modify(|it| it.connected = true);
        }
        Packet::Publish(message) => {
            let fields = json!({
                "topic": String::from_utf8_lossy(message.topic.as_ref()),
                "payload": String::from_utf8_lossy(&message.payload),
                "qos": message.qos as u8,
                "retain": message.retain,
            });
            say(name, "message", fields);
        }
        Packet::SubAck(_) => done.send_modify(|it| it.subscribed += 1),
        Packet::PubAck(_) | Packet::PubComp(_) => done.send_modify(|it| it.published += 1),
        _ => {}
    }
}

fn level_of(level: u8) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][level as usize]
}
