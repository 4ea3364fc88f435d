"""Mistakes that the types must catch; each line that must fail ends in the code of its error."""

from kvledger.ledger import Account, Ledger
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings
from kvledger.units import parse_bytes

Ledger(100)  # error: call-arg
Ledger(capacity=100, usd=5)  # error: call-arg
Ledger(capacity="100")  # error: arg-type
Ledger(capacity=1)["used"]  # error: index
Ledger(capacity=1).used = 2  # error: misc
Pool(bytes_per_token=1, memory_bytes="50GiB")  # error: arg-type
Settings()  # error: call-arg
parse_policy(b"max")  # error: arg-type
parse_bytes(5)  # error: arg-type
total: str = Ledger(capacity=1)[Account.USED]  # error: assignment
