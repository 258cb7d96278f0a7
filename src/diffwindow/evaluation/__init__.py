"""The evaluation of trained models: scores, comparisons and learned windows against gold ones."""
