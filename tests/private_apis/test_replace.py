import pytest

from pipeline.private_apis.replace import replace, replaced


class Original:
    @classmethod
    def name(cls):
        return cls.__name__


class Derived(Original):
    pass


def test_replaced_within_the_block():
    """The attribute is replaced within the block and restored as it was defined, also after an error."""
    with replaced(Original, "name", staticmethod(lambda: "other")):
        assert Original.name() == Derived.name() == "other"
    with pytest.raises(ValueError, match="stop"), replaced(Original, "name", None):
        raise ValueError("stop")
    assert Derived.name() == "Derived"


@pytest.mark.parametrize("owner", [Derived, pytest])
def test_an_attribute_that_is_not_defined(owner):
    """An attribute that a class inherits, or that a module lacks, can't be replaced."""
    with pytest.raises(AttributeError, match="does not define name"), replaced(owner, "name", None):
        pass


def test_an_attribute_that_an_object_lacks():
    """What another release no longer uses is not set."""
    timer = Original()
    timer.hold = 1
    replace(timer, "hold", 2)
    assert timer.hold == 2
    with pytest.raises(AttributeError, match="Original does not define holds"):
        replace(timer, "holds", 2)
