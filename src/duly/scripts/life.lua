#!lua flags=allow-oom
-- life: tell this life of the server from its next: what is compared now may be another's memory when it is approved.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
-- ARGV     now_ms    '' means the server's clock
--          nonce     names this life from now on, unless it has a name
-- returns  its name, with that of the namespace, which may be emptied and made anew
-- cost     O(1)

clock(now_ms)
lives[meta] = lives[meta] or nonce
return lives[meta] .. shard[EPOCH]
