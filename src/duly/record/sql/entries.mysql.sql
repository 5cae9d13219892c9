-- Entries of requests, locked, each looked up by its name: for a list of names the whole namespace may be locked.
SELECT kept.name, kept.about
FROM JSON_TABLE(:names, '$[*]' COLUMNS (name VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS given
  STRAIGHT_JOIN duly_idempotency AS kept ON kept.namespace = :namespace AND kept.name = given.name
FOR UPDATE
