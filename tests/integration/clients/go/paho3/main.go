// Paho's Go client for MQTT 3.1.1 (github.com/eclipse/paho.mqtt.golang), as its users get it.
package main

import (
	"fmt"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"motelog/clients/driver"
)

type client struct {
	mqtt    mqtt.Client
	sending []mqtt.Token
}

func connect(order driver.Order) driver.Client {
	options := mqtt.NewClientOptions()
	options.AddBroker(fmt.Sprintf("tcp://127.0.0.1:%d", order.Port))
	options.SetClientID(order.ID)
	if order.Keep {
		options.SetCleanSession(false)
	}
	if order.Will != nil {
		options.SetWill(order.Will.Topic, order.Will.Payload, order.Will.QoS, order.Will.Retain)
	}
	options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
		driver.Say(order.Client, "message", driver.Event{
			"topic": message.Topic(), "payload": string(message.Payload()),
			"qos": message.Qos(), "retain": message.Retained(),
		})
	})
	isFirst := true
	options.SetOnConnectHandler(func(mqtt.Client) {
		// Of a reconnect it does not tell whether the session was present.
		if !isFirst {
			driver.Say(order.Client, "connected", driver.Event{"present": nil})
		}
		isFirst = false
	})
	it := &client{mqtt: mqtt.NewClient(options)}
	token := it.mqtt.Connect()
	finish(token)
	driver.Say(order.Client, "connected", driver.Event{
		"present": token.(*mqtt.ConnectToken).SessionPresent(),
	})
	return it
}

func finish(token mqtt.Token) {
	token.Wait()
	driver.Check(token.Error())
}

func (it *client) Subscribe(order driver.Order) {
	finish(it.mqtt.Subscribe(order.Filter, order.QoS, nil))
}

func (it *client) Publish(order driver.Order) {
	it.sending = append(it.sending, it.mqtt.Publish(order.Topic, order.QoS, order.Retain, order.Payload))
}

// Drain waits for the tokens. One whose connection broke meanwhile has an error: the library sends
// the message again by itself, and tells nobody how that ends.
func (it *client) Drain() {
	for _, token := range it.sending {
		token.Wait()
	}
	it.sending = nil
}

func (it *client) Disconnect() {
	it.mqtt.Disconnect(250)
}

func main() {
	driver.Run(connect)
}
