"""What a backend may implement, and how one is found."""
