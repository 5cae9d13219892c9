#!/bin/sh
# Starts a Java that lacks the module which Spark's launcher always asks for.
for word in "$@"; do
    shift
    case $word in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec @java@ "$@"
