"""TensorBoard gets a layout for the curves, and a description of how the run is set up."""

import re

import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedDNA, FedNNNN
from fl_lightning.callbacks import (
    AngleDiagnostics,
    DivergenceDiagnostics,
    FederatedServer,
    HyperParameters,
    NormDiagnostics,
    Participation,
    ProximalTerm,
    TensorBoardLayout,
)
from fl_lightning.callbacks.run.hparams import run_parameters
from fl_lightning.data import ClassesPerClient, RandomClients
from tests.runs import scalars
from tests.toys import Blobs, Net, federate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a run with all diagnostics."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    callbacks = [NormDiagnostics(), AngleDiagnostics(), DivergenceDiagnostics(), Participation()]
    federate(
        Net(batch_norm=True),
        Blobs(batch_size=8),
        partition=ClassesPerClient(4, 2),
        selection=RandomClients(count=3),
        server=FederatedServer(
            FedNNNN(beta=0.7, gamma=0.8),
            weighting="uniform",
            client=LocalTraining(epochs=2, callbacks=[ProximalTerm(0.1)]),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ),
        callbacks=[*callbacks, TensorBoardLayout(), HyperParameters()],
        logger=TensorBoardLogger(folder, "", version="all"),
    )
    return folder / "all"


def charts(run) -> dict[str, dict[str, list[str]]]:
    """Return the tags of each chart in the Custom Scalars tab, by category."""
    events = EventAccumulator(str(run))
    events.Reload()
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    return {group.title: {chart.title: list(chart.multiline.tag) for chart in group.chart} for group in layout.category}


def shown(run, category: str, title: str) -> set[str]:
    """Return the tags in a chart, matched as TensorBoard matches them."""
    patterns = charts(run)[category][title]
    return {tag for tag in scalars(run) if any(re.match(pattern, tag) for pattern in patterns)}


@pytest.mark.parametrize("layer", ["layers.0", "all"])
def test_both_n_of_a_layer_and_its_e_share_a_chart(run, layer):
    tags = {f"norms/{layer}/move", f"norms/{layer}/N", f"norms/{layer}/E"}  # FedNNNN, eq. 24, 4 and 25
    assert shown(run, "Norms", f"N and E: {layer}") == tags


def test_the_angles_of_all_clients_share_a_chart(run):
    found = shown(run, "Angles", "angle to the average, radians")
    assert found == {tag for tag in scalars(run) if tag.startswith("angles/client_")}
    assert len(found) >= 3


def test_accuracy_has_a_chart(run):
    assert shown(run, "Evaluation", "accuracy, precision, recall, F1") == {"val_accuracy"}


@pytest.mark.parametrize("tag", ["val/accuracy", "val/macro_precision", "val/macro_recall", "val/macro_f1"])
def test_the_classifiers_metrics_share_the_accuracy_chart(run, tag):
    (pattern,) = charts(run)["Evaluation"]["accuracy, precision, recall, F1"]
    assert re.match(pattern, tag)


def test_every_tag_of_the_diagnostics_is_in_a_chart(run):
    found = {tag for group, titles in charts(run).items() for title in titles for tag in shown(run, group, title)}
    logged = {tag for tag in scalars(run) if tag.startswith(("norms/", "angle", "divergence/", "participation/"))}
    assert logged - found == {"participation/clients"}


def test_no_chart_is_empty(run):
    empty = {title for group, titles in charts(run).items() for title in titles if not shown(run, group, title)}
    assert empty == set()


def test_feddna_and_a_reference_have_their_own_charts(tmp_path):
    torch.save(Net(batch_norm=True).state_dict(), tmp_path / "reference.ckpt")
    federate(
        Net(batch_norm=True),
        server=FederatedServer(FedDNA(steps=5)),
        callbacks=[DivergenceDiagnostics(reference=str(tmp_path / "reference.ckpt")), TensorBoardLayout()],
        logger=TensorBoardLogger(tmp_path, "", version="run"),
        rounds=1,
    )
    found = {title: shown(tmp_path / "run", "Divergences", title) for title in charts(tmp_path / "run")["Divergences"]}
    assert found == {
        "between clients' gradients": {"divergence/gradient"},
        "FedDNA's γ": {f"feddna/gamma_client_{client:03d}" for client in range(4)},
        "of the statistics from the reference": {"divergence/statistics"},
        "of the parameters from the reference": {"divergence/parameters"},
    }


def test_only_what_is_logged_has_a_category(tmp_path):
    federate(callbacks=[TensorBoardLayout()], logger=TensorBoardLogger(tmp_path, "", version="few"), rounds=1)
    assert charts(tmp_path / "few").keys() == {"Evaluation"}


def test_a_resumed_run_has_one_layout(tmp_path):
    logger = {"logger": TensorBoardLogger(tmp_path, "", version="run")}
    _, trainer = federate(callbacks=[TensorBoardLayout()], rounds=1, **logger)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    federate(callbacks=[TensorBoardLayout()], rounds=2, ckpt_path=tmp_path / "begun.ckpt", **logger)
    assert "Evaluation" in charts(tmp_path / "run")


def test_without_tensorboard_nothing_is_written(tmp_path):
    logger = CSVLogger(tmp_path, "", version="run")
    federate(callbacks=[TensorBoardLayout(), HyperParameters()], logger=logger, rounds=1)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"metrics.csv", "hparams.yaml", "provenance.yaml"}


def hparams(run, tag: str):
    events = EventAccumulator(str(run))
    events.Reload()
    content = events.SummaryMetadata(tag).plugin_data.content
    return plugin_data_pb2.HParamsPluginData.FromString(content)


def test_the_hparams_tab_shows_how_the_run_is_set_up(run):
    fields = hparams(run, "_hparams_/session_start_info").session_start_info.hparams
    values = {name: value.string_value or value.number_value for name, value in fields.items()}
    partition = values.pop("partition")
    assert partition.startswith("ClassesPerClient(num_clients=4, classes=2")
    assert values == {
        "model.hidden": 8,
        "model.lr": 0.1,
        "model.momentum": 0,
        "model.batch_norm": "True",
        "model.dropout": 0,
        "aggregator": "FedNNNN(beta=0.7, gamma=0.8, granularity=model)",
        "aggregator.beta": 0.7,
        "aggregator.gamma": 0.8,
        "partition.num_clients": 4,
        "partition.classes": 2,
        "partition.exponent": 1,
        "partition.min_samples": 1,
        "weighting": "uniform",
        "client.epochs": 2,
        "client.dropout": 0,
        "client.batch_size": 8,
        "client.callbacks": "ProximalTerm(mu=0.1)",
        "server.optimizer": "SGD(lr=0.5)",
        "data": "Blobs",
        "selection": "RandomClients(count=3)",
        "transforms": "none",
        "seed": 0,
    }


def test_objects_made_by_the_command_line_are_shown_as_class_and_arguments(tmp_path):
    net = Net()
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "nesterov": False, "fused": None}}
    net._hparams_initial = {"_instantiator": "x", "optimizer": optimizer, "sizes": [16, 32], "mask": None}
    _, trainer = federate(net, rounds=1)
    parameters = run_parameters(trainer, trainer.lightning_module)
    assert {name: value for name, value in parameters.items() if name.startswith("model.")} == {
        "model.optimizer": "SGD(lr=0.05)",
        "model.optimizer.lr": 0.05,
        "model.sizes": "16, 32",
        "model.mask": "none",
    }


def test_the_hparams_tab_shows_the_final_metrics_of_the_run(run):
    infos = hparams(run, "_hparams_/experiment").experiment.metric_infos
    assert {info.name.tag for info in infos} == {"val_loss", "val_accuracy", "train/loss"}
    assert "hp_metric" not in scalars(run)
    assert hparams(run, "_hparams_/session_end_info").session_end_info.status


def test_the_hyper_parameters_add_no_points_to_the_curves(run):
    assert [step for step, _ in scalars(run)["val_accuracy"]] == [0, 1]
