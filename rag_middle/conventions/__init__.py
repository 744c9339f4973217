"""How clients hand documents to a model, and what an answer that cites them looks like."""
