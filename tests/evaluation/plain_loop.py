"""The transfer protocol as a plain loop: one model at a time, autograd, torch.optim, scikit-learn folds.

It is the oracle of the tests and the baseline of ``benchmarks/bench_transfer.py``; nothing is
shared with the package.
"""

import copy

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

SEED = 1111
PENALTIES = [1e-5, 1e-4, 1e-3, 1e-2]
CONFIGS = {
    "default": {
        "folds": 10,
        "optimizer": torch.optim.Adam,
        "batch": 64,
        "tenacity": 5,
        "epoch_size": 4,
    },
    "fast": {
        "folds": 5,
        "optimizer": torch.optim.RMSprop,
        "batch": 128,
        "tenacity": 3,
        "epoch_size": 2,
    },
}


class PlainModel:
    """One softmax regression, trained alone."""

    def __init__(self, n_features, n_classes, penalty, config):
        np.random.seed(SEED)
        torch.manual_seed(SEED)
        self.layer = torch.nn.Linear(n_features, n_classes)
        self.optimizer = config["optimizer"](self.layer.parameters(), weight_decay=penalty)
        self.config = config

    def fit(self, x, y, x_dev, y_dev):
        epoch, best, strikes = 0, -1.0, 0
        while epoch <= 200:
            for _ in range(self.config["epoch_size"]):
                self.one_pass(x, y)
            epoch += self.config["epoch_size"]
            accuracy = self.score(x_dev, y_dev)
            if accuracy > best:
                best, kept = accuracy, copy.deepcopy(self.layer.state_dict())
            elif strikes >= self.config["tenacity"]:
                break
            else:
                strikes += 1
        self.layer.load_state_dict(kept)
        return best

    def fit_with_holdout(self, x, y):
        order = np.random.permutation(len(x))
        n = int(0.05 * len(x))
        return self.fit(x[order[n:]], y[order[n:]], x[order[:n]], y[order[:n]])

    def one_pass(self, x, y):
        order = torch.from_numpy(np.random.permutation(len(x)))
        for start in range(0, len(x), self.config["batch"]):
            rows = order[start : start + self.config["batch"]]
            loss = torch.nn.functional.cross_entropy(self.layer(x[rows]), y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def predict(self, x):
        with torch.no_grad():
            return self.layer(x).argmax(1)

    def score(self, x, y):
        return float((self.predict(x) == y).double().mean())


def folds_of(y, n_folds):
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=SEED)
    return list(folds.split(np.zeros(len(y)), y.numpy()))


def search_penalty(x, y, pairs, n_classes, config):
    """Return the best weight decay and its mean dev accuracy over (train, dev) pairs of rows."""
    means = []
    for penalty in PENALTIES:
        scores = []
        for train, dev in pairs:
            model = PlainModel(x.shape[1], n_classes, penalty, config)
            scores.append(model.fit(x[train], y[train], x[dev], y[dev]))
        means.append(np.mean(scores))
    best = int(np.argmax([round(100 * mean, 2) for mean in means]))
    return PENALTIES[best], means[best]


def plain_nested(features, labels, protocol, n_folds=None):
    """MR, CR, SUBJ, MPQA: return dev accuracy, accuracy and the weight decay of every outer fold."""
    config, x, y = CONFIGS[protocol], torch.as_tensor(features), torch.as_tensor(labels)
    n_folds = n_folds or config["folds"]
    n_classes = int(y.max()) + 1
    dev, test, chosen = [], [], []
    for train_rows, test_rows in folds_of(y, n_folds):
        x_train, y_train = x[train_rows], y[train_rows]
        penalty, score = search_penalty(
            x_train, y_train, folds_of(y_train, n_folds), n_classes, config
        )
        model = PlainModel(x.shape[1], n_classes, penalty, config)
        model.fit_with_holdout(x_train, y_train)
        dev.append(score)
        test.append(model.score(x[test_rows], y[test_rows]))
        chosen.append(penalty)
    return float(np.mean(dev)), float(np.mean(test)), tuple(chosen)


def plain_kfold(features, labels, n_train, protocol):
    """TREC, MRPC: the first ``n_train`` rows train; return dev accuracy, accuracy, (weight decay,)."""
    config, x, y = CONFIGS[protocol], torch.as_tensor(features), torch.as_tensor(labels)
    n_classes = int(y.max()) + 1
    x_train, y_train = x[:n_train], y[:n_train]
    penalty, dev = search_penalty(
        x_train, y_train, folds_of(y_train, config["folds"]), n_classes, config
    )
    model = PlainModel(x.shape[1], n_classes, penalty, config)
    model.fit_with_holdout(x_train, y_train)
    return dev, model.score(x[n_train:], y[n_train:]), (penalty,)


def plain_split(features, labels, n_train, n_dev, protocol):
    """SST2: train, dev and test rows in this order; return dev accuracy, accuracy, (weight decay,)."""
    config, x, y = CONFIGS[protocol], torch.as_tensor(features), torch.as_tensor(labels)
    n_classes = int(y.max()) + 1
    train, dev, test = np.split(np.arange(len(y)), [n_train, n_train + n_dev])
    penalty, score = search_penalty(x, y, [(train, dev)], n_classes, config)
    model = PlainModel(x.shape[1], n_classes, penalty, config)
    model.fit(x[train], y[train], x[dev], y[dev])
    return score, model.score(x[test], y[test]), (penalty,)
