from operant.catalog import bonuses


def test_each_bonus_says_what_it_pays_for_and_where_it_comes_from():
    for name, bonus in bonuses.BONUSES.items():
        assert name == name.lower()
        assert bonus.place.startswith("operant.explore:")
        assert bonus.idea
        assert bonus.paper
    assert [name for name, bonus in bonuses.BONUSES.items() if bonus.is_episodic] == ["episodic"]
    assert [name for name, bonus in bonuses.BONUSES.items() if bonus.weight < bonuses.WEIGHT] == ["episodic"]
