"""The paper's tables and figures as data, and what runs and reports them."""
