import pytest
from matplotlib.image import imread


def test_the_command_prints_a_table_draws_a_picture_and_creates_no_model_trainer_or_run(run, tmp_path):
    before = sorted(tmp_path.iterdir())
    needless = ["--model", "tests.cli.toys.Unaffordable", "--trainer.accelerator", "cuda"]
    code, out, err = run("partition", "--config", "run.yaml", *needless, "--output", "owners.png")
    assert code == 0, err
    assert out.startswith("Blobs, 120 samples of 4 classes\nClassesPerClient(num_clients=10, classes=2), seed 3\n")
    assert " total      120        4  30  30  30  30" in out
    assert "120 of 120 samples have an owner, 0 more than one" in out
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "owners.png"])
    assert imread(tmp_path / "owners.png").shape[:2] == (900, 1500)


def test_the_command_shows_the_partition_of_a_run_from_its_own_config(run, tmp_path):
    code, _, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    run_folder = tmp_path / "runs" / "run" / "version_0"
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run("partition", "--config", run_folder / "config.yaml", "--data.partition.num_clients", 6)
    assert code == 0, err
    assert "ClassesPerClient(num_clients=6, classes=2), seed 3" in out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "owners"], "output=owners: set --output to a file that ends in .png, .pdf or .svg"),
        (
            ["--output", "nowhere/owners.png"],
            "output=nowhere/owners.png: the folder nowhere does not exist, create it first",
        ),
        (["--data.partition.classes", 12], "classes=12, but the data set has 4"),
        (["--data.partition", "MixedNodes", "--data.partition.classes", "[1, 0]"], "samples_per_node"),
        (
            [
                "--data.partition",
                "MixedNodes",
                "--data.partition.classes=[1,1-9]",
                "--data.partition.samples_per_node=5",
            ],
            "classes=9, but the data set has 4",
        ),
    ],
)
def test_a_mistake_is_reported_in_one_line(run, tmp_path, arguments, message):
    code, _, err = run("partition", "--config", "run.yaml", *arguments)
    assert code == 2
    assert [message in line for line in err.splitlines() if line.startswith("error: ")] == [True]


def test_the_help_of_the_command_is_complete(run):
    code, out, _ = run("partition", "--help")
    assert code == 0
    for option in ("--config", "--output", "--data.partition", "--seed_everything"):
        assert option in out
