"""The methods that change who may do what: rules, quotas, tokens, revocations, and the security floor."""
