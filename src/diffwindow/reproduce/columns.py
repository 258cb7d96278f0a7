"""The columns that tables share: corpora with their metrics."""

from diffwindow.reproduce.table import Column

EN_DE = Column("en-de", "English-German", "bleu")
EN_FR = Column("en-fr", "English-French", "bleu")
SST = Column("sst", "SST-2", "accuracy")
IMDB = Column("imdb", "IMDB", "accuracy")
SVA = Column("sva", "subject-verb agreement", "accuracy")
# the paper's figure is of another test set, so this column has none
SVA_SUBSET = Column("sva-subset", "subject-verb agreement, a subset heavy in attractors", "accuracy")
LM = Column("lm", "language modelling", "perplexity")
AGREEMENT = Column("agreement", "generated agreement", "accuracy")
AGREEMENT_10 = Column("agreement-10", "generated agreement, 10 % of the sentences", "accuracy")
TUNING = Column("tuning", "SST-2", "accuracy", split="valid")
TUNING_IMDB = Column("tuning-imdb", "IMDB", "accuracy", split="valid")
