"""The rehearsal of a sale: starts the site's processes, sends the crowds, and judges what came back."""
