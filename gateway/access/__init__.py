"""Authentication and authorisation of clients: logins, rights, and their files."""
