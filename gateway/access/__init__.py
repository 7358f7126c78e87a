"""Who a client is and what it may do: logins, rights, and the files that say so."""
