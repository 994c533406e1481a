from fl_lightning.tags import evaluated


def test_what_a_module_logs_by_any_name_is_its_own():
    logged = [
        "my_acc",
        "val/accuracy",
        "val_loss",
        "train/loss",
        "norms/all/N",
        "angles/client_001",
        "bytes/up",
        "fedadp/angle_mean",
        "epoch",
    ]
    assert evaluated(logged) == ["my_acc", "val/accuracy", "val_loss"]
