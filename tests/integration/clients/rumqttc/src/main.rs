//! rumqttc, as its users get it: reads orders and prints events, JSON line by JSON line
//! (tests/support/mqtt_programs.py). Its argument is the version of MQTT, 4 or 5.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{json, Value};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::task::{spawn_local, LocalSet};

/// What a client has done so far.
#[derive(Default)]
pub struct Done {
    connected: bool,
    subscribed: usize,
    /// Messages that need nothing more: at QoS 0 sent, otherwise acknowledged.
    published: usize,
    disconnected: bool,
}

type Wait = Pin<Box<dyn Future<Output = ()>>>;

pub trait Client {
    fn subscribe(&self, filter: String, level: u8) -> Wait;
    fn publish(&self, topic: String, payload: String, level: u8, retain: bool) -> Wait;
    fn disconnect(&self) -> Wait;
}

mod v4 {
    use super::*;
    use rumqttc::{AsyncClient, Event, LastWill, MqttOptions, Outgoing, Packet, QoS};

    fn keep(options: &mut MqttOptions) {
        options.set_clean_session(false);
    }

    fn will(will: &Value) -> LastWill {
        LastWill::new(
            text(will, "topic"),
            text(will, "payload"),
            level_of(level(will)),
            is_retained(will),
        )
    }

    include!("driven.rs");
}

mod v5 {
    use super::*;
    use rumqttc::v5::mqttbytes::v5::{LastWill, Packet};
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::{AsyncClient, Event, MqttOptions};
    use rumqttc::Outgoing;

    fn keep(options: &mut MqttOptions) {
        options.set_clean_start(false);
        options.set_session_expiry_interval(Some(600));
    }

    fn will(will: &Value) -> LastWill {
        LastWill::new(
            text(will, "topic"),
            text(will, "payload"),
            level_of(level(will)),
            is_retained(will),
            None,
        )
    }

    include!("driven.rs");
}

/// One client and what it was asked to do.
struct Driver {
    name: String,
    client: Rc<dyn Client>,
    done: watch::Receiver<Done>,
    subscribed: usize,
    published: usize,
}

impl Driver {
    async fn carry_out(&mut self, order: &Value) {
        match text(order, "do").as_str() {
            "subscribe" => {
                self.client
                    .subscribe(text(order, "filter"), level(order))
                    .await;
                self.subscribed += 1;
                let count = self.subscribed;
                self.wait("subscribed", |done| done.subscribed == count)
                    .await;
            }
            "publish" => {
                let (topic, payload) = (text(order, "topic"), text(order, "payload"));
                self.client
                    .publish(topic, payload, level(order), is_retained(order))
                    .await;
                self.published += 1;
            }
            "drain" => {
                let count = self.published;
                self.wait("drained", |done| done.published >= count).await;
            }
            "disconnect" => {
                self.client.disconnect().await;
                self.wait("disconnected", |done| done.disconnected).await;
            }
            other => panic!("what is {other}?"),
        }
    }

    async fn wait(&mut self, event: &str, condition: impl FnMut(&Done) -> bool) {
        self.done.wait_for(condition).await.unwrap();
        say(&self.name, event, json!({}));
    }
}

fn text(order: &Value, key: &str) -> String {
    order[key].as_str().unwrap_or_default().to_string()
}

fn level(order: &Value) -> u8 {
    order["qos"].as_u64().unwrap_or_default() as u8
}

fn is_retained(order: &Value) -> bool {
    order["retain"] == true
}

fn say(client: &str, event: &str, mut fields: Value) {
    fields["client"] = json!(client);
    fields["event"] = json!(event);
    println!("{fields}");
}

async fn run(version: String) {
    let mut drivers: HashMap<String, Driver> = HashMap::new();
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let order: Value = serde_json::from_str(&line).unwrap();
        let name = text(&order, "client");
        if order["do"] == "connect" {
            let (sender, mut done) = watch::channel(Done::default());
            let connect = if version == "5" {
                v5::connect
            } else {
                v4::connect
            };
            let client = connect(&order, sender);
            done.wait_for(|done| done.connected).await.unwrap();
            let driver = Driver {
                name: name.clone(),
                client,
                done,
                subscribed: 0,
                published: 0,
            };
            drivers.insert(name, driver);
        } else {
            drivers.get_mut(&name).unwrap().carry_out(&order).await;
        }
    }
}

fn main() {
    let version = std::env::args().nth(1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, run(version));
}
