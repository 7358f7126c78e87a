// Paho's Go client for MQTT 5 (github.com/eclipse/paho.golang) with autopaho, as its users get it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
	"motelog/clients/driver"
)

type client struct {
	manager *autopaho.ConnectionManager
	orders  chan driver.Order
	sending sync.WaitGroup
}

var forever = context.Background()

func connect(order driver.Order) driver.Client {
	server, err := url.Parse(fmt.Sprintf("mqtt://127.0.0.1:%d", order.Port))
	driver.Check(err)
	up := make(chan struct{}, 16)
	config := autopaho.ClientConfig{
		ServerUrls: []*url.URL{server},
		KeepAlive:  20, // it has no default; this is what its examples say
		OnConnectionUp: func(_ *autopaho.ConnectionManager, connack *paho.Connack) {
			driver.Say(order.Client, "connected", driver.Event{"present": connack.SessionPresent})
			up <- struct{}{}
		},
		ClientConfig: paho.ClientConfig{
			ClientID: order.ID,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(received paho.PublishReceived) (bool, error) {
					packet := received.Packet
					driver.Say(order.Client, "message", driver.Event{
						"topic": packet.Topic, "payload": string(packet.Payload),
						"qos": packet.QoS, "retain": packet.Retain,
					})
					return true, nil
				},
			},
		},
	}
	if order.Keep {
		config.SessionExpiryInterval = 600
	}
	if will := order.Will; will != nil {
		config.WillMessage = &paho.WillMessage{
			Topic: will.Topic, Payload: []byte(will.Payload), QoS: will.QoS, Retain: will.Retain,
		}
	}
	manager, err := autopaho.NewConnection(forever, config)
	driver.Check(err)
	<-up
	it := &client{manager: manager, orders: make(chan driver.Order, 1000)}
	go it.publish()
	return it
}

func (it *client) Subscribe(order driver.Order) {
	_, err := it.manager.Subscribe(forever, &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: order.Filter, QoS: order.QoS}},
	})
	driver.Check(err)
}

func (it *client) Publish(order driver.Order) {
	it.sending.Add(1)
	it.orders <- order
}

// One after the other, as publish returns when the message is acknowledged. Without a connection
// it refuses; what it has taken before outlives the connection.
func (it *client) publish() {
	for order := range it.orders {
		for {
			driver.Check(it.manager.AwaitConnection(forever))
			_, err := it.manager.Publish(forever, &paho.Publish{
				Topic: order.Topic, Payload: []byte(order.Payload), QoS: order.QoS, Retain: order.Retain,
			})
			if errors.Is(err, autopaho.ConnectionDownError) || errors.Is(err, session.ErrNoConnection) {
				continue
			}
			driver.Check(err)
			break
		}
		it.sending.Done()
	}
}

func (it *client) Drain() {
	it.sending.Wait()
}

func (it *client) Disconnect() {
	driver.Check(it.manager.Disconnect(forever))
}

func main() {
	driver.Run(connect)
}
