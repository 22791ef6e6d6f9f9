"""What a caller of a warmlane server installs: the contract, a client, and the `warmlane` command."""
