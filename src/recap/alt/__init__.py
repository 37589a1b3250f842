"""Alt texts for the pictures of a page: which tags lack one, and the page with them filled in."""
