"""Accuracy of a logistic regression on bags of words: the baseline that a model must exceed.

    python benchmarks/bag_of_words.py TRAIN VALID TEST

Each argument is a path or address that `glassformer data` reads. Words and pairs of words have tf-idf weights;
the strength of the regularisation is chosen on VALID, and TEST is scored once.
"""

import argparse

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from glassformer.config.run import LabelData
from glassformer.data.labels import LabelCorpus

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)


def read(path: str) -> tuple[list[str], list[str]]:
    records = LabelCorpus(LabelData(path=path)).whole()
    return [record.inputs[0] for record in records], [record.labels[0] for record in records]


def fitted(strength: float, texts: list[str], labels: list[str]) -> Pipeline:
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")
    return make_pipeline(words, LogisticRegression(C=strength, max_iter=1000)).fit(texts, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    train, valid, test = (read(path) for path in (arguments.train, arguments.valid, arguments.test))
    models = {strength: fitted(strength, *train) for strength in STRENGTHS}
    scores = {strength: 100 * model.score(*valid) for strength, model in models.items()}
    best = max(scores, key=lambda strength: scores[strength])
    for strength, score in scores.items():
        print(f"C {strength:<6} valid {score:.2f}{'  chosen' if strength == best else ''}")
    print(f"test {100 * models[best].score(*test):.2f}")


if __name__ == "__main__":
    main()
