"""The paper's experiment from raw data to its tables: `matrix` defines what is trained and
evaluated, `options` what a user chooses, `stages` does it in steps that resume, and `plan`
estimates time and disk before anything runs."""
