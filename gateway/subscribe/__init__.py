"""SUBSCRIBE and UNSUBSCRIBE, shared subscriptions, and how sessions are stored with them."""
