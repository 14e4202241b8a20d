"""The paper's experiment from raw data to its tables: `matrix` defines what is trained and
evaluated, `stages` does it in steps that resume, `training_task` trains one generator, `plan`
estimates time and disk before anything runs."""
