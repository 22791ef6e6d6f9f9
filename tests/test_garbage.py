"""What a full collection still looks at after the start."""

import gc

from pipeline.garbage import spare_what_exists


def test_what_exists_is_spared_and_what_comes_is_not() -> None:
    early = [object()]
    try:
        spare_what_exists()
        late = [object()]
        seen = gc.get_objects()
        assert not any(each is early for each in seen)
        assert any(each is late for each in seen)
    finally:
        gc.unfreeze()
