import shutil

import pytest
import torch

from tests.toys import Net, blobs

UNLABELLED = ["--config", "run.yaml", "--data.source", "tests.cli.toys.Unlabelled"]
LAST = "runs/run/version_0/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder for the runs of the first test, which the other tests copy."""
    return tmp_path_factory.mktemp("trained") / "runs"


@pytest.fixture
def predict(run, trained):
    """Return a function that predicts with the checkpoint of a run."""
    if not trained.exists():
        assert run("fit", "--config", "run.yaml")[0] == 0
        shutil.copytree("runs", trained)
    shutil.copytree(trained, "runs", dirs_exist_ok=True)
    return lambda *arguments: run("predict", *arguments, "--ckpt_path", LAST)


def served_logits():
    model = Net.load_from_checkpoint(LAST).eval()
    with torch.no_grad():
        return model(blobs().tensors[0])


def test_a_module_without_predict_step_writes_what_forward_returns_for_each_batch(predict):
    code, out, err = predict(*UNLABELLED)
    assert code == 0, err
    assert "Predictions: predictions.pt, a list with one entry per batch; torch.load reads it\n" in out
    batches = torch.load("predictions.pt")
    assert [len(batch) for batch in batches] == [50, 50, 20]
    torch.testing.assert_close(torch.cat(batches), served_logits())


def test_a_module_with_predict_step_writes_what_it_returns_to_the_named_file(predict, tmp_path):
    model = ["--model", "tests.cli.toys.Labelling", "--model.batch_norm", "true"]
    code, out, err = predict(*UNLABELLED, *model, "--output", "labels.pt")
    assert code == 0, err
    assert "Predictions: labels.pt," in out
    labels = torch.cat([batch["label"] for batch in torch.load("labels.pt")])
    assert torch.equal(labels, served_logits().argmax(1))
    assert not (tmp_path / "predictions.pt").exists()


def test_several_loaders_give_a_list_each(predict):
    code, out, err = predict("--config", "run.yaml", "--data.source", "tests.cli.toys.TwoLoaders")
    assert code == 0, err
    assert "a list per loader, with one entry per batch" in out
    assert [len(batches) for batches in torch.load("predictions.pt")] == [3, 3]


def test_the_bundled_data_predicts_its_test_part(run):
    demo = ["--data.source", "Digits", "--data.partition", "IID", "--data.partition.num_clients", 2]
    model = ["--model", "Classifier", "--model.net", "MLR", "--model.net.inputs", 64]
    with pytest.warns(UserWarning, match="predict uses an untrained model: set --ckpt_path"):
        code, _, err = run("predict", *demo, *model, "--trainer.enable_progress_bar", "false")
    assert code == 0, err
    assert sum(map(len, torch.load("predictions.pt"))) == 360


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "run.yaml"], "Blobs has no predict_dataloader: define Blobs.predict_dataloader, which returns"),
        ([*UNLABELLED, "--output", "out.csv"], "output=out.csv: set --output to a file that ends in .pt or .pth"),
        ([*UNLABELLED, "--trainer.devices", 2], "predict runs on 2 devices, but writes one file"),
    ],
)
def test_a_mistake_is_reported_in_one_line_before_anything_is_written(predict, tmp_path, arguments, message):
    code, _, err = predict(*arguments)
    assert code == 2
    assert [line for line in err.splitlines() if line.startswith("error: ") and message in line]
    assert not (tmp_path / "predictions.pt").exists()
