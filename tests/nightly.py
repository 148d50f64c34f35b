"""Whether this run may take long: `--hypothesis-profile=nightly`, as in `make test-nightly`."""

import hypothesis

IS_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
