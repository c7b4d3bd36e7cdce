"""What can be done about a finding without a guess: proposed first, done only when somebody agreed, and told step by step."""
