// Package driver reads orders and prints events, JSON line by JSON line (tests/support/mqtt_programs.py).
package driver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Order is one line of standard input; which fields count depends on Do.
type Order struct {
	Do      string
	Client  string
	Port    int
	ID      string
	Keep    bool
	Will    *Message
	Filter  string
	Topic   string
	Payload string
	QoS     byte
	Retain  bool
}

// Message is a will.
type Message struct {
	Topic   string
	Payload string
	QoS     byte
	Retain  bool
}

// Event is one line of standard output.
type Event map[string]any

// Client is what a program has for each client; it calls Say with what happens.
type Client interface {
	Subscribe(order Order)
	Publish(order Order)
	Drain()
	Disconnect()
}

var output sync.Mutex

// Say prints an event.
func Say(client, event string, fields Event) {
	line := Event{"client": client, "event": event}
	for key, value := range fields {
		line[key] = value
	}
	text, err := json.Marshal(line)
	Check(err)
	output.Lock()
	defer output.Unlock()
	fmt.Printf("%s\n", text)
}

// Check ends the program at a fault that nobody expects.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Run carries out orders until there are no more.
func Run(connect func(order Order) Client) {
	clients := map[string]Client{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var order Order
		Check(json.Unmarshal(lines.Bytes(), &order))
		client := clients[order.Client]
		switch order.Do {
		case "connect":
			clients[order.Client] = connect(order)
		case "subscribe":
			client.Subscribe(order)
			Say(order.Client, "subscribed", nil)
		case "publish":
			client.Publish(order)
		case "drain":
			client.Drain()
			Say(order.Client, "drained", nil)
		case "disconnect":
			client.Disconnect()
			Say(order.Client, "disconnected", nil)
		}
	}
	Check(lines.Err())
}
