from recap.words import join_words, surface_words, words


def test_words_of_several_scripts():
    assert words("The Dog's red-brown BALL, ’tis.") == ("the", "dog's", "red-brown", "ball", "tis")
    assert words("Ein großer Hund") == ("ein", "grosser", "hund")
    assert words("狗 runs") == ("狗", "runs")
    assert surface_words("In Paris, a T-shirt!") == ["In", "Paris", "a", "T-shirt"]


def test_words_become_a_text_again():
    assert join_words(["a", "red", "t-shirt"]) == "a red t-shirt"
    assert join_words(["犬", "が", "2", "いる"]) == "犬が 2 いる"
